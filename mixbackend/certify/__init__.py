"""Certification: claims of a backend held against samples. ``mixbackend.certify()`` is ``certification.certify``."""
