"""The commands: parsing and printing; what they do stands below."""
