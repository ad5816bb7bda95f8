from .job import Job as Job
from .job import Transform as Transform
from .job import chain as chain
from .parts import Artefact as Artefact
from .parts import Data as Data
from .parts import Effect as Effect
from .parts import Facts as Facts
from .parts import Trained as Trained
