"""The series: each module measures one subject and yields figures and curves."""
