"""Starting distributed jobs: on this machine, and through the launchers that a site has.

``local`` runs the tasks of a job here (``tasks`` says who they are, ``task`` is what each goes
through, ``output`` carries their lines, ``guard`` ends them when their launcher is gone);
``slurm`` and ``kubernetes`` write the files for those; ``ray`` runs a function on Ray's actors;
``communication`` chooses how the workers talk. None of them loads TensorFlow.
"""
