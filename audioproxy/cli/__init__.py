"""The ``audioproxy`` command: signs and explains URLs, examines a configuration, fills a store."""
