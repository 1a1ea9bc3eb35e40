"""How the service is, for an owner's eyes and for an archive that may be given to others."""
