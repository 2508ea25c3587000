"""One running render: its backlog, its readers, who shares it and where it is stored."""
