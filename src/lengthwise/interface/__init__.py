"""What `import lengthwise as lw` offers beyond training and evaluating one run: studies, comparisons, catalogues."""
