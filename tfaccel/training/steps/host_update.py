class HostUpdate:
    def __init__(self, optimizer, replicas): pass
