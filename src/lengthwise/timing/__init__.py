"""Measures the cost of encodings on this machine: time side by side in one process, memory in a process for each."""
