"""Requests and answers: one class is what is asked or answered, its JSON form, and its OpenAPI entry."""
