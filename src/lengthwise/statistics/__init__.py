"""Rows → numbers that respect seeds. Imports no torch.

table: accuracy and scores of each run · cells: the median seed, reach · outcomes: each example under each seed ·
intervals, aggregates, flips: means over tasks, differences, tests · ranks: MRR and standing · seeds: how many more ·
sensitivity: does the order hang on a choice? Every number is an `estimate.Estimate`, with n, unit and recipe.
"""
