from .plan import PipelineOptions as PipelineOptions
