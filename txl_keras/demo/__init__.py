"""The playground of `txl demo`: a page, its server, and what they ask."""
