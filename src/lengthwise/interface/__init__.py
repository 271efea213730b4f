"""The Python interface beyond training and evaluating one run: studies, comparisons, catalogues."""
