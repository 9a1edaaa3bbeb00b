"""What a model costs a text: static and dynamic, with the choices that are made on validation text."""
