"""A request made ready to run: one file for each kind of target, text, image, and whatever else there comes to be."""
