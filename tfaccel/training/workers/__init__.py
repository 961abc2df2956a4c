"""How the devices and processes of a plan come together, and what to say when one is lost."""
