"""Save checkpoints from which a killed training goes on exactly where it was."""
