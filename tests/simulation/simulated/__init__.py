"""A world of replicas, clients and one store in which everything follows from a seed."""
