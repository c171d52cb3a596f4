"""What a run needs: from a request to a plan, before anything is traced.

`fetches` and `feeds` read what is asked for, `request` puts it into one form, `plan` prunes the graph and says which
version of a variable each read sees, `result_readers` where each result will be found.
"""
