"""Nobody else is there."""

from small import build, data

import tfopt

tfopt.train_asynchronously(build, data, epochs=1, patience_s=2)
