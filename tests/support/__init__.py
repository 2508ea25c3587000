"""What the tests share: doubles, each honest and itself tested, and strategies."""
