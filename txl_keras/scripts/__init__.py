"""Code that the scripts in train/ share: flags and how scripts run."""
