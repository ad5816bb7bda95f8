from .job import Job as Job
from .parts import Artefact as Artefact
from .parts import Data as Data
from .parts import Effect as Effect
from .parts import Facts as Facts
from .transform import Run as Run
from .transform import Transform as Transform
from .transform import chain as chain
