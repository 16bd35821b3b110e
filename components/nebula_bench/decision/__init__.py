"""How long a routing decision takes, Nebula's beside Dynamo's, with the same workers and index entries."""
