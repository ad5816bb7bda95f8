"""Save checkpoints from which a killed training resumes exactly."""
