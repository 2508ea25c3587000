"""HTTP words in, HTTP words out."""
