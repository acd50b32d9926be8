"""Clients and addresses that several adapters share."""
