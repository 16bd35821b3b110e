"""Who decides where a request is prefilled: Nebula, what it is compared with, and what is left of it without a part."""
