"""Hold what was measured as data, and render it for terminal, Markdown and HTML."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
