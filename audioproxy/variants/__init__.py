"""Where rendered variants are kept: files of a folder, or objects of a bucket."""
