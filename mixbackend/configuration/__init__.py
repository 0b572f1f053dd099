"""What the user asks for: YAML, dictionaries or objects, validated into one frozen value.

Place: before everything; ``auto()`` and the command line turn what they were given into a ``Config`` here.
Files: ``problems`` (all that is wrong, at once), ``document`` (YAML with positions), ``rules`` (preferences),
``checks`` (what spans several keys), ``options`` (overrides), ``model`` (the value), ``load`` (the way in), ``schema``
(for editors).
"""

from mixbackend.configuration.load import load_config
from mixbackend.configuration.model import CacheConfig, Config, LockConfig, SearchConfig, VerifyConfig
from mixbackend.configuration.problems import ConfigurationProblemsError, Problem
from mixbackend.configuration.rules import Rule, RuleMatch
from mixbackend.configuration.schema import json_schema

__all__ = [
    "CacheConfig",
    "Config",
    "ConfigurationProblemsError",
    "LockConfig",
    "Problem",
    "Rule",
    "RuleMatch",
    "SearchConfig",
    "VerifyConfig",
    "json_schema",
    "load_config",
]
