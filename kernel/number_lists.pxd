# Nothing of it is for other modules.
