"""The series: each module measures one thing, and yields figures and curves of it."""
