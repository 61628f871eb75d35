"""What the checks are written with: cases, masks, comparison, loops over the formula, devices."""
