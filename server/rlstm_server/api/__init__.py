"""HTTP: routes, their schemas, and the layers that every request passes through."""
