"""Replacement of a service under load: `make handover`, and a short form in the suite."""
