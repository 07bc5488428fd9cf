"""A `pillarbox.sources.Source` as a data source of Spark, for batch reads and for streams."""
