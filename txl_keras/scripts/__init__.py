"""What the scripts in train/ share: flags, and how they stop."""
