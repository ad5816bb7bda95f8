"""Turn any source of examples into a ``tf.data`` pipeline that keeps the device busy."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
