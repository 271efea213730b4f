"""Statistics of rows over seeds, tasks and lengths. Imports no torch.

table: accuracy and scores of each run · cells: the median seed, reach · outcomes: each example under each seed ·
intervals, aggregates, flips: means over tasks, differences, tests · ranks: MRR and mean rank · seeds: how many more
are needed · sensitivity: how analysis choices change the order of encodings. Estimates are `estimate.Estimate`.
"""
