"""Ways in for code that has never heard of polyattn: its claims are found out by trying."""
