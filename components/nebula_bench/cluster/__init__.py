"""A cluster in virtual time: the router's and the workers' own cores, driven by a discrete-event simulation."""
