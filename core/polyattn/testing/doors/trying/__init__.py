"""What is found out of a module or a language model by calls that may fail."""
