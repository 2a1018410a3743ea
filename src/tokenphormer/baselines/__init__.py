"""Other methods, one file each, trained by the same loop on the same splits."""
