"""Charts of scalars as SVG, for the page of `hookline report` and for notebooks: `line_chart`, made of `markup`."""
