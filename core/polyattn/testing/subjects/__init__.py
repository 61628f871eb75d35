"""What is checked: variants, feature maps, positions, masks, states and networks, wrapped alike."""
