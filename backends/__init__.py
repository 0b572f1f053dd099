"""Our own backends. Each imports the contract and ``backends.common`` only; found through entry points like a vendor's.

Calling the package, ``mixbackend.backends()``, lists every registered backend; see ``mixbackend.callable_packages``.
"""
