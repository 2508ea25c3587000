"""What is in deploy/, tested as it is deployed."""
