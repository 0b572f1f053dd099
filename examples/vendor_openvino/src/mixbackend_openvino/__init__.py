"""OpenVINO as a backend of mixbackend, through its public contract alone."""
